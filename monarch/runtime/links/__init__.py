"""What processes send each other, and whom they know: lanes, bulk, trees, partings."""
