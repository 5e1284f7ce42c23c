"""The features of the state machine: a folder each, with its commands and the rules that apply them."""
