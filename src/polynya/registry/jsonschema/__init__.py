"""JSON Schema, from draft 4 to 2020-12: parsing, and when one schema accepts all that another does.

https://json-schema.org/draft/2020-12/json-schema-validation
"""
