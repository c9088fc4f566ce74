"""The store: a bare git repository that holds every tree and snapshot. pygit2 is imported only here.

names meta trees            how a workspace lies in git: escaped names, records, trees
packs deltas repository     objects on disk: packs, differences, the store itself and its locks
descent xattrs chunks copying   the host's files: opened, read and written without following anything
reading gathering crew scan statcache   a whole directory into a tree, on two cores, again for one lstat a file
editing uppers              the next tree from an overlay's upper, at the cost of the changes
checkout layers             back onto disk: a whole tree, or the layer between two
commits references reference_files   snapshots, the references that make them count, and their tags
diffs patches               what differs, as a list and as text
verify auditing proving intake   what is believed, and why
reach gc                    what is needed, and throwing away the rest
"""
