"""What people see in a browser: pages under /ui that a service renders itself, with the rules of its REST interface.

    sessions    who is signed in: a cookie that stands for one of the service's tokens
    entrance    what is asked of a request before a page sees it: its session, its origin, its form's token
    rendering   templates, links and the pages for problems
    forms       the fields of a form
    static      stylesheet and scripts, each under a name that changes with its content
    words       sizes, times and costs as people read them
    routes      signing in and out

A service has its own routes and templates in its package `pages`; docs/pages.md says how to add to them. Nothing here
knows a service, and no page calls the service over HTTP.
"""
