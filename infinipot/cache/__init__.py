"""The pot: entries in slots, layer by layer, and what goes with them."""
