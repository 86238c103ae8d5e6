"""The generated pages of docs/reference, one module each: `page()` has its text."""
