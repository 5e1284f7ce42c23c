"""The data source `polynya` of Spark: streams as a batch or streaming source, and as an idempotent
sink.

    spark.read.format("polynya").option("prefix", "orders/").load()

PySpark finds it in the installed package `pyspark_polynya`. A reader's planning (`planning`) asks
the server where records lie; tasks fetch them from the object store, or from the server
(`reading`). The sink (`sink`) stages rows in streams, and the driver appends them.
"""
