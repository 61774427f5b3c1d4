"""The context windows of models: how requests are fitted into them."""
