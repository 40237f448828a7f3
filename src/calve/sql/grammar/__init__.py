"""The grammar: one function per statement, over a cursor of tokens."""
