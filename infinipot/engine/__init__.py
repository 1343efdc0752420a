"""Reading without end, distilling, and answering, on token ids."""
