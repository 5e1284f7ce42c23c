"""HTTP framing: exchanges, responses, errors, CORS, the router and the template of repeated
appends."""
