"""Operations as the checker knows them: one module each, named as the operation."""
