print "training"
for x in xrange(3):
    print x
