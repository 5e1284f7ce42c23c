"""Tables: the records that their jobs claim, and the jobs that they have reached."""
