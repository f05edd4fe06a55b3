"""The conformance suite: what every store must do, those of somebody else included.

* `suite` plays a story, or makes a class of tests of all of them. The stories are in modules by
  their subjects; `bench` has what they share.
* `twins` plays one random life on two stores, which must answer the same.
* `stores` has those that need nothing but Python.
* ``python -m tests.durable.conformance`` plays all of it over a store of somebody else's.
"""
