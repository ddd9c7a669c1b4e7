"""The compiled library: its functions, structs and errors, and the values that go into them."""
