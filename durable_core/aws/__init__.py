"""AWS: how requests are sent and what their errors mean; above that, later, the Lambda handlers."""
