"""The checks of `polynya doctor`: this machine, the data folder, the object store, and the server.

Checks change nothing but temporary files and objects of their own, which they remove. (A Java
launcher stays in the user's cache, where tables look for it.) A check never raises: a failure to
check is a finding. Each check has a time limit, so that `doctor` ends on a dead network.
"""
