"""Rules of the commands: one module for each kind of change that a group's log can make."""
