"""PTX text to typed instructions: nodes, lexer, parser, and the linker that flattens a kernel."""
