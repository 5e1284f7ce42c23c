"""Commands about metrics: the dashboard and the alert rules made of their table, and `top`."""
