"""How a report reads, as Markdown or as a page. Imports stay light: `carma report` is quick."""
