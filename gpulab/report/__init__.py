"""What the lab tells about formats and capabilities: data first, then rendering."""
