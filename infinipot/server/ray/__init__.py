"""The server as replicas on a Ray cluster."""
