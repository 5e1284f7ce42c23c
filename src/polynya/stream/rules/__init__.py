"""The rules that apply commands: one module for each kind of change in a group's log."""
