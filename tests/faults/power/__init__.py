"""Power cuts at block level: record what a filesystem sends to its disk, then start again from any part of it.

    recorder   a FUSE file that logs every write and every flush; a loop device makes a disk of it
    disk       the log, the cuts that it allows, the image that each leaves
    story      operations of ws on such a disk, and what each promised once it was reported
    recording  runs a story on a recorded disk
    replay     builds the image of each cut, mounts it, lets ws recover and compares with the promises

A device keeps what it was sent before a flush that it answered. What came after the last flush may be lost, kept or
torn between sectors, each write by itself: those are the images that `disk` builds.
"""
