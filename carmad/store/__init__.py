"""The durable side of CARMA: one SQLite file that holds every job and how it got there.

`sql.SqlStore` is the door: it writes, and `reading.Reader` below it reads.
Nothing here decides anything about jobs.
"""
