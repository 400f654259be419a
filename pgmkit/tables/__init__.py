"""Tables as people have them: columns, bins, files, frames, and questions about them."""
