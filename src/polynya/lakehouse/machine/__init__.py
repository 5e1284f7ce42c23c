"""Prerequisites of the machine: Java, and the optional packages."""
