"""Where Opacus keeps its batch memory manager."""
