import pickle,random,sys
random.seed(1)
n=int(sys.argv[1]); path=sys.argv[2]
base=0x7f0000000000
frames=[[{"filename":f"/x/model_{i%17}.py","name":f"layer_{i}","line":i},{"filename":"/x/train.py","name":"forward","line":i%7},{"filename":"/x/train.py","name":"main","line":3}] for i in range(400)]
hist=[];t=0;segs=[]
S=2<<30
for k in range(16): hist.append({"action":"segment_alloc","addr":base+k*S,"size":S,"stream":0,"time_us":t,"frames":[]})
# a bump with free list per size class
free={};bump=[0]*16;live=[]
def alloc(size):
    f=free.get(size)
    if f: return f.pop()
    for k in range(16):
        if bump[k]+size<=S:
            a=base+k*S+bump[k]; bump[k]+=size; return a
    return None
while len(hist)<n:
    t+=3
    if live and (len(live)>3000 or random.random()<0.49):
        i=random.randrange(max(0,len(live)-40),len(live)) if random.random()<.8 else random.randrange(len(live))
        a,s=live[i]; live[i]=live[-1]; live.pop()
        hist.append({"action":"free_requested","addr":a,"size":s,"stream":0,"time_us":t,"frames":[]})
        hist.append({"action":"free_completed","addr":a,"size":s,"stream":0,"time_us":t,"frames":[]})
        free.setdefault(s,[]).append(a)
    else:
        s=random.choice([512,4096,65536,1<<20,3<<20,8<<20])
        a=alloc(s)
        if a is None: continue
        live.append((a,s))
        hist.append({"action":"alloc","addr":a,"size":s,"stream":0,"time_us":t,"frames":frames[random.randrange(400)]})
liveset=dict(live)
for k in range(16):
    b0=base+k*S; blocks=[]
    at=b0
    for a in sorted(x for x in liveset if b0<=x<b0+S):
        if a>at: blocks.append({"address":at,"size":a-at,"requested_size":a-at,"state":"inactive","frames":[]})
        blocks.append({"address":a,"size":liveset[a],"requested_size":liveset[a],"state":"active_allocated","frames":[]}); at=a+liveset[a]
    if at<b0+S: blocks.append({"address":at,"size":b0+S-at,"requested_size":b0+S-at,"state":"inactive","frames":[]})
    segs.append({"device":0,"address":b0,"total_size":S,"allocated_size":0,"active_size":0,"requested_size":0,"stream":0,"segment_type":"large","segment_pool_id":(0,0),"is_expandable":False,"frames":[],"blocks":blocks})
pickle.dump({"segments":segs,"device_traces":[hist],"allocator_settings":{}},open(path,"wb"),protocol=int(sys.argv[3]) if len(sys.argv)>3 else 5)
