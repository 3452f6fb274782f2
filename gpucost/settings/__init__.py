"""What settings of every gpucost process are made of: types, the environment, and their page in docs.

The settings themselves stand with the process they belong to.
"""
