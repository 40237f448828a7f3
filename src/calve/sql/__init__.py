"""SQL text -> statements. Pure: no Spark, no Iceberg, no files, no clock.

    text ──► lexer ──► grammar/ ──► statements ──► to_sql()
             tokens    one function   frozen         the canonical text:
                       a statement    values         parse(s.to_sql()) == s

- `parser` is the way in: `parse`, `parse_one`, and `split_complete` for a prompt.
- `statements`, `parts`, `options`, `names` are the values; they know how to print themselves and nothing else.
- `values` parses durations and sizes, which options hold as text.
- `errors` points at a place in the text with a caret. Planning may point at places, too: names and options remember
  theirs (`where`), which comparisons ignore.

Text inside views, queries and `DELETE WHEN` is Spark's language. It is found, checked for closed quotes and brackets,
and kept as it was written.
"""
