"""What the author of an engine needs: the `Storage` protocol, and the store over any `Storage`.

A storage compares the newest batch, writes rows and appends a delta. It knows no lanes, no jobs and
no rules: `StorageStore` has these. `MemoryStorage` is the one to read first; the page on
durability tells how to add another.
"""

from ._chain.memory import MemoryNamespace as MemoryNamespace
from ._chain.memory import MemoryStorage as MemoryStorage
from ._chain.storage import NO_HEAD as NO_HEAD
from ._chain.storage import All as All
from ._chain.storage import Batch as Batch
from ._chain.storage import Fate as Fate
from ._chain.storage import Get as Get
from ._chain.storage import Head as Head
from ._chain.storage import Missed as Missed
from ._chain.storage import Question as Question
from ._chain.storage import Seen as Seen
from ._chain.storage import Span as Span
from ._chain.storage import Storage as Storage
from ._chain.storage import StorageError as StorageError
from ._chain.storage import Texts as Texts
from ._chain.storage import Writes as Writes
from ._chain.storage import told as told
from ._chain.store import StorageStore as StorageStore
