"""How much memory there is, and the least that training needs."""
