"""The schema registry over HTTP: `log` reads and appends the topic, `routes` speak Confluent's API."""
