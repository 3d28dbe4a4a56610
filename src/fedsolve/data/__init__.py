"""Data: samples, tables and the federations they are split into, and where tables come from (names, files, folders).

`task` says what is predicted from what; `align` brings anybody's file to a task.
"""
