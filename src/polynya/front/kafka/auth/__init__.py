"""Authentication of Kafka clients by SASL, and the permissions of their requests.

Every handler checks the names of its request with one call of `Call.caller`: see `caller`.
"""
