"""Subscriptions in the state of a group: rules, links between groups, and name patterns."""
