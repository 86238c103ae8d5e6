"""The generated pages of docs, one module each: `page()` has its text."""
