"""Servers that the tests run against: real ones, and small ones of this process in front of them.

java       a server in a JVM, on a free loopback port
cluster    Spark: a standalone master and workers
catalog    Iceberg's REST catalog
store      S3Proxy behind a proxy that checks signatures
postgres   PostgreSQL, where it is installed
kafka      Apache Kafka, one broker
trino      a reader of tables, for the tests at length
listening  an HTTP server in this process
proxy      forwards requests, and injects faults
logins     checks logins: HTTP Basic, bearer tokens, signatures; and a server that issues tokens
roles      AWS's STS: who holds one pair of keys may assume one role, for a while
lakehouse  catalog and store together, one per test session
"""
