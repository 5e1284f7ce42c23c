"""Operations on streams, one module each. `table` maps methods and routes to them."""
