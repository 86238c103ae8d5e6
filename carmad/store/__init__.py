"""CARMA's durable state: one SQLite file with every job and its history.

`sql.SqlStore` is the entry point: it writes, and its base class `reading.Reader` reads.
Nothing here makes decisions about jobs.
"""
