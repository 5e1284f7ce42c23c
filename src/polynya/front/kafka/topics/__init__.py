"""The topics as one core knows them, and the steps that create, change and delete them.

`catalog` is the door; `steps` and `profile_change` propose commands; `producers` has what new topics
need to know of the producers of former ones.
"""
