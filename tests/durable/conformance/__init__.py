"""The conformance suite: what every store must do, those of somebody else included.

* `suite` makes a class of tests of a store. The stories are in the other modules, one for each
  subject; `bench` has what they share.
* `twins` plays one random life on two stores, which must answer the same.
"""
