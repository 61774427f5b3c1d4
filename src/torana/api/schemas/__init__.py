"""The models of request and response bodies. They also write the OpenAPI document."""
