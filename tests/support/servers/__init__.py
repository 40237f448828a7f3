"""Servers that the tests run against: real ones in Java, and small ones of this process in front of them.

java       a server in a JVM, on a free loopback port
catalog    Iceberg's REST catalog
store      S3Proxy, an S3 that checks signatures
listening  an HTTP server in this process
proxy      passes requests on, and has faults when it is told to
logins     who may pass: HTTP Basic, bearer tokens, signatures; and a server that issues tokens
lakehouse  all of them together, one per test session
"""
