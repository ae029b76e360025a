"""What a user calls: `wrap`, modules, collections and their options."""
