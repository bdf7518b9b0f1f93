"""What ``monarch.actor`` has is to be imported from there."""
