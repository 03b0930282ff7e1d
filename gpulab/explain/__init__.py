"""Where the error of a kernel comes from: its declaration, held against its compiled object."""
