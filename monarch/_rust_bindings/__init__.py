"""Where older programs import a few public names from. There is no Rust behind it."""
