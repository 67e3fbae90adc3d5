"""Any block of code, traced as it runs."""
